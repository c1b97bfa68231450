"""Operators of the engine that walks use instead of torch, one module for each kind of device."""
