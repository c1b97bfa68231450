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

// maxKeys bounds a keyring: a rotation needs two.
const maxKeys = 16

var errKeyring = errors.New("cluster: keyring is invalid")

// parseKeyring parses one base64 key per line, of 16, 24 or 32 bytes. Empty lines and those
// that begin with # are skipped. Errors never contain the text of a key.
func parseKeyring(text []byte) ([][]byte, error) {
	var keys [][]byte
	for i, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.AppendDecode(nil, line)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d is not base64", errKeyring, i+1)
		}
		if err := memberlist.ValidateKey(key); err != nil {
			return nil, fmt.Errorf("%w: line %d: %d bytes, want 16, 24 or 32", errKeyring, i+1, len(key))
		}
		for _, other := range keys {
			if bytes.Equal(key, other) {
				return nil, fmt.Errorf("%w: line %d: duplicate key", errKeyring, i+1)
			}
		}
		if keys = append(keys, key); len(keys) > maxKeys {
			return nil, fmt.Errorf("%w: more than %d keys", errKeyring, maxKeys)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%w: no key", errKeyring)
	}
	return keys, nil
}

// install sets the keys of a ring, in this order.
//
// When a ring removes a key that is not its last, it moves keys within memory that readers
// access. So the order is set first, with the keys to remove last. For an instant each key
// encrypts, which is why a key has to be on all rings before it becomes the first on one.
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

// derive returns n bytes that reveal nothing about the key, for one use in one cluster.
func derive(key []byte, use, cluster string, n int) []byte {
	out, err := hkdf.Key(sha256.New, key, nil, "spliced cluster 1 "+use+"\x00"+cluster, n)
	if err != nil {
		panic(err) // n is out of range
	}
	return out
}

// Secret is the key for the names in the index, which reveal nothing without it. It is derived
// from the file cluster-secret if there is one, else from the first key of the ring when the
// process started, and stays the same for the life of the process.
//
// So rotating the keys of a running cluster changes no name. The alternatives were worse. With a
// secret that follows the first key, every node sends its whole set to all others again, and
// finds nothing while nodes differ. The last key changes when one is added, and again when the
// order is reversed. One problem remains: the names of a node that restarts after a rotation,
// while others do not, differ. Its metadata shows that, and it is a member that is not asked
// (Member.Unusable). Clusters that rotate keys without restarting all nodes set cluster-secret.
type Secret [32]byte

// makeSecret prefers a file's text to a key. With neither the secret is public.
func makeSecret(file []byte, keys [][]byte, cluster string) Secret {
	switch {
	case len(file) > 0:
		return Secret(derive(file, "names of a file", cluster, 32))
	case len(keys) > 0:
		return Secret(derive(keys[0], "names", cluster, 32))
	}
	return Secret(derive(nil, "names without a key", cluster, 32))
}

// check returns bytes that distinguish secrets without revealing them.
func (s *Secret) check() [8]byte { return [8]byte(derive(s[:], "check", "", 8)) }
