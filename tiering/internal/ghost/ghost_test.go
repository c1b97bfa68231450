package ghost

import (
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

func key(n byte) *[32]byte { return &[32]byte{n, n} }

func TestOnlyTheLastKeysAreRemembered(t *testing.T) {
	l := New(3)
	for n := range byte(5) {
		l.Note(Entry{Key: *key(n), Profile: 1, Tenant: 1, Reason: tier.ReasonEvicted, Tokens: uint32(n)})
	}
	l.Note(Entry{Key: *key(3), Profile: 1, Tenant: 1, Reason: tier.ReasonRemoved, Tokens: 9})
	for n, want := range []Entry{
		{Reason: tier.ReasonUnknown}, {Reason: tier.ReasonUnknown},
		{Reason: tier.ReasonEvicted, Tokens: 2}, {Reason: tier.ReasonRemoved, Tokens: 9}, {Reason: tier.ReasonEvicted, Tokens: 4},
	} {
		why, tokens := l.Why(key(byte(n)), 1, 1)
		if why != want.Reason || tokens != want.Tokens {
			t.Errorf("key %d: %v, %d tokens; want %v, %d", n, why, tokens, want.Reason, want.Tokens)
		}
	}
}

func TestKeysOfOthersAreUnknown(t *testing.T) {
	l := New(3)
	l.Note(Entry{Key: *key(1), Profile: 1, Tenant: 1, Reason: tier.ReasonEvicted, Tokens: 7})
	if why, tokens := l.Why(key(1), 1, 2); why != tier.ReasonUnknown || tokens != 0 {
		t.Errorf("another tenant is told %v, %d tokens", why, tokens)
	}
	if why, tokens := l.Why(key(1), 2, 1); why != tier.ReasonUnknown || tokens != 0 {
		t.Errorf("another profile is told %v, %d tokens", why, tokens)
	}
}
