"""The REST admin API: routes, roles, limits, errors, the OpenAPI description and the page made of it.

Owns what is said over HTTP and to whom; everything it says comes from `control.Operator`. This file names nothing,
so that tokens can be read without FastAPI, which takes half a second: `server` is imported when workers can connect.
"""
