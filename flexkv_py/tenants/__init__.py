"""Tenants, purely: what each uses of every tier, what it may use, who gives room first, how long blocks are kept."""
