// Package usage keeps how prompts were served, as engines tell it once a first token
// is there: sums for each tenant and profile, which Memory carries over restarts, the
// last requests one by one, and a history of sums for charts. It owns all of what it
// keeps; its types may be used at once.
package usage
