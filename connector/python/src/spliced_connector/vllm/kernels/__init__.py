"""Operators of the engine that walks use in place of torch, one module for each kind of device."""
