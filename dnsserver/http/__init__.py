"""EDGE: serves health and metrics over HTTP."""
