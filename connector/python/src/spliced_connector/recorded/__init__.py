"""The engines' interfaces when the adapters last ran with them; see `drift`."""
