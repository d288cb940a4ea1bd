"""Counters, and their form for Prometheus."""
