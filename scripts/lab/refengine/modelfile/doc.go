// Package modelfile has the configuration and the weights of a reference engine's model. A
// configuration may be read from a Hugging Face config.json. Weights are drawn from a seed, or
// read from a safetensors file with the tensor names of Qwen3-Next. It computes nothing.
package modelfile
