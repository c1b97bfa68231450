// Package modelfile holds the source of a reference engine's model: its configuration, also
// read from a Hugging Face config.json, and its weights, drawn from a seed or read from
// safetensors under the names of Qwen3-Next. It computes nothing.
package modelfile
