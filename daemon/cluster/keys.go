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

// parseKeyring reads one base64 key a line, of 16, 24 or 32 bytes. Empty lines and those
// that begin with # are skipped. The text of a key is in no error.
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
				return nil, fmt.Errorf("%w: line %d: the key is there already", errKeyring, i+1)
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

// install makes a ring hold these keys, the first of them first.
//
// A ring moves keys within memory that readers look at when it removes one that is not
// its last, so the order is set first: then those that go are last. For an instant each
// key encrypts, which is why a key has to be on all rings before it is first on one.
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

// derive gives n bytes that tell nothing of the key, for one use in one cluster.
func derive(key []byte, use, cluster string, n int) []byte {
	out, err := hkdf.Key(sha256.New, key, nil, "spliced cluster 1 "+use+"\x00"+cluster, n)
	if err != nil {
		panic(err) // n is out of range
	}
	return out
}

// Secret keys the names of the index, which then tell nothing to who does not have it. It
// is made of the file cluster-secret where there is one, else of the key that was first
// on the ring when the process started, and stays what it is for the life of the process.
//
// Rotating the keys of a running cluster therefore changes no name. The alternatives were
// worse: a secret that follows the first key makes every node tell every other its whole
// set again, and finds nothing while nodes differ; the last key changes when one is
// added, and back when the order is turned. What remains is a node that restarts after a
// rotation while others do not: its names differ, which metadata shows, so that it is a
// member that is not asked (Member.Unusable). Clusters that rotate keys without
// restarting everybody set cluster-secret.
type Secret [32]byte

// makeSecret prefers a file's text to a key. With neither the secret is known to everybody.
func makeSecret(file []byte, keys [][]byte, cluster string) Secret {
	switch {
	case len(file) > 0:
		return Secret(derive(file, "names of a file", cluster, 32))
	case len(keys) > 0:
		return Secret(derive(keys[0], "names", cluster, 32))
	}
	return Secret(derive(nil, "names without a key", cluster, 32))
}

// check tells two secrets apart without telling either.
func (s *Secret) check() [8]byte { return [8]byte(derive(s[:], "check", "", 8)) }
