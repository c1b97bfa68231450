"""Operators of the engine that walks use instead of torch. Each kind of device has a module."""
