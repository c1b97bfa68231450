// Package usage records how prompts were served, as engines report after the first token. It has
// sums per tenant and profile, which Memory keeps over restarts, the latest requests, and a history
// of sums for charts. The package owns all this data. Its types may be used concurrently.
package usage
