package api

import "time"

// Event is something that happened. What does not apply to its kind is left out.
type Event struct {
	ID      uint64    `json:"id"`
	At      time.Time `json:"at"`
	Kind    string    `json:"kind"`
	Object  string    `json:"object,omitempty"`
	Key     *Digest   `json:"key,omitempty"`
	Profile uint32    `json:"profile,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Model   string    `json:"model,omitempty"`
	Client  string    `json:"client,omitempty"`
	Bytes   int64     `json:"bytes,omitempty"`
	Tokens  int       `json:"tokens,omitempty"`
	Why     string    `json:"why,omitempty"`
	Policy  string    `json:"policy,omitempty"`
	Value   float64   `json:"value_ms_per_mib,omitempty"`
	Text    string    `json:"text,omitempty"` // for people
}

// Lease is somebody's right to read or fill an object.
type Lease struct {
	ID         uint64    `json:"lease"`
	Object     string    `json:"object"`
	Key        Digest    `json:"key"`
	Tenant     string    `json:"tenant"`
	Profile    uint32    `json:"profile"`
	Client     string    `json:"client"`
	Connection uint64    `json:"connection"`
	Rank       int       `json:"rank"`
	Since      time.Time `json:"since"`
	Expires    time.Time `json:"expires"`
	Bytes      int64     `json:"bytes"`
	Device     string    `json:"device"`
}

// Pin keeps an object from being evicted until it expires.
type Pin struct {
	Key     Digest    `json:"key"`
	Tenant  string    `json:"tenant"`
	Bytes   int64     `json:"bytes"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by"`
}

// BulkRemoval answers the removal of all that passes a filter.
type BulkRemoval struct {
	DryRun  bool  `json:"dry_run"`
	Matched int   `json:"matched"`
	Removed int   `json:"removed"`
	Busy    int   `json:"busy"` // leased or being filled: they stay
	Bytes   int64 `json:"bytes"`
}
