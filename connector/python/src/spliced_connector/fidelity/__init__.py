"""Measures how far splicing is from a full prefill, on an operator's own prompts and model.

`python -m spliced_connector.fidelity MODEL_DIR PROMPTS.jsonl` needs no daemon and no labels: it
compares each way of reuse with the model's own full prefill, and recommends a primer. `loading` and
`measure` need torch and transformers; reading prompts, intervals and the report do not.
"""
