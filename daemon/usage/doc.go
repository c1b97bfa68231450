// Package usage records how prompts were served, as engines report after the first token:
// sums per tenant and profile, which Memory keeps over restarts, the latest requests, and a
// history of sums for charts. It owns all its data; its types may be used concurrently.
package usage
