package cluster

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"
)

// maxKeys is the largest number of keys in a keyring. A key rotation needs two.
const maxKeys = 16

// parseKeyring parses one base64 key of 16, 24 or 32 bytes per line. It skips empty lines and lines
// that begin with #. Its errors do not contain the text of a key.
func parseKeyring(text []byte) ([][]byte, error) {
	var keys [][]byte
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.AppendDecode(nil, line)
		if err != nil {
			return nil, fmt.Errorf("line %d is not base64", i+1)
		}
		if err := memberlist.ValidateKey(key); err != nil {
			return nil, fmt.Errorf("line %d: %d bytes, want 16, 24 or 32", i+1, len(key))
		}
		for _, other := range keys {
			if bytes.Equal(key, other) {
				return nil, fmt.Errorf("line %d: duplicate key", i+1)
			}
		}
		if keys = append(keys, key); len(keys) > maxKeys {
			return nil, fmt.Errorf("more than %d keys", maxKeys)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("no key")
	}
	return keys, nil
}

// install puts the keys on a ring in the order of the slice, and removes all others.
//
// memberlist can safely remove only the last key of a ring. For any earlier key, it moves keys
// within memory that readers access. So install first calls UseKey, which makes a key the first
// one, until the keys to be removed are at the end. While it does so, each of the keys encrypts for
// an instant. A key must therefore be on the rings of all nodes before it becomes the first key on
// one of them.
func install(ring *memberlist.Keyring, keys [][]byte) error {
	for _, key := range keys {
		if err := ring.AddKey(key); err != nil {
			return err
		}
	}
	for i := len(keys) - 1; i >= 0; i-- {
		if err := ring.UseKey(keys[i]); err != nil {
			return err
		}
	}
	for held := ring.GetKeys(); len(held) > len(keys); held = ring.GetKeys() {
		if err := ring.RemoveKey(held[len(held)-1]); err != nil {
			return err
		}
	}
	return nil
}

// derive returns n bytes that are specific to one use in one cluster. They reveal nothing about the
// key.
func derive(key []byte, use, cluster string, n int) []byte {
	out, err := hkdf.Key(sha256.New, key, nil, "spliced cluster 1 "+use+"\x00"+cluster, n)
	if err != nil {
		panic(err) // n is out of range
	}
	return out
}

// Secret is the key with which names in the index are hashed; without it, the hashes reveal
// nothing. It is derived from the file cluster-secret if that is set, otherwise from the first key
// of the ring at the start. It stays the same until the process ends, so that rotating the keys of
// a running cluster changes no name.
//
// Alternatives are worse. If the secret followed the first key, a rotation would change all names:
// every node would have to send its whole set to all others again, and would find nothing on nodes
// with another first key. If it followed the last key, it would change when a key is added, and
// again when the order is reversed.
//
// One problem remains. If a node restarts after a rotation, its names differ from those of nodes
// that did not restart. Its metadata shows that, and the other nodes do not ask it
// (Member.Unusable). So clusters that rotate keys without restarting all nodes should set
// cluster-secret.
type Secret [32]byte

// makeSecret derives the secret from a file's text or, without a file, from the first key. With
// neither, the secret is public.
func makeSecret(file []byte, keys [][]byte, cluster string) Secret {
	switch {
	case len(file) > 0:
		return Secret(derive(file, "names of a file", cluster, 32))
	case len(keys) > 0:
		return Secret(derive(keys[0], "names", cluster, 32))
	}
	return Secret(derive(nil, "names without a key", cluster, 32))
}

// check returns bytes that differ between secrets and do not reveal them.
func (s *Secret) check() [8]byte { return [8]byte(derive(s[:], "check", "", 8)) }
