package server

import (
	"testing"

	"github.com/spliced-kv/spliced/policy/profile"
)

func TestNumbersThatNoPromptHasAreCut(t *testing.T) {
	if profile.MaxTokens > cut(1<<32-1) {
		t.Error("cut lets a length through")
	}
}
