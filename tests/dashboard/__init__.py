"""Tests of the dashboard. A package, so that browser and daemon can be one for all of them and end with them."""
