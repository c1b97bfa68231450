package cluster

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	"github.com/hashicorp/memberlist"
)

// keyOf is a key of 32 bytes.
func keyOf(c byte) []byte { return bytes.Repeat([]byte{c}, 32) }

func ringText(keys ...[]byte) string {
	var text strings.Builder
	text.WriteString("# keys of a test\n\n")
	for _, key := range keys {
		text.WriteString(base64.StdEncoding.EncodeToString(key) + " \r\n")
	}
	return text.String()
}

func TestAKeyringIsAFileOfKeys(t *testing.T) {
	keys, err := parseKeyring([]byte(ringText(keyOf('a'), keyOf('b')[:16], keyOf('c')[:24])))
	if err != nil || len(keys) != 3 || !bytes.Equal(keys[0], keyOf('a')) || len(keys[1]) != 16 || len(keys[2]) != 24 {
		t.Fatalf("%q, %v", keys, err)
	}
	var many [][]byte
	for i := range maxKeys + 1 {
		many = append(many, keyOf(byte(i)))
	}
	secret := base64.StdEncoding.EncodeToString(keyOf('s')[:31])
	for text, want := range map[string]string{
		"":                                  "no key",
		"# nothing\n":                       "no key",
		"key!":                              "line 1 is not base64",
		"\n" + secret:                       "line 2: 31 bytes",
		ringText(keyOf('a'), keyOf('a')):    "line 4: duplicate key",
		ringText(many...):                   "more than 16 keys",
		ringText(keyOf('a')) + secret + "=": "not base64",
	} {
		_, err := parseKeyring([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), secret[:20]) {
			t.Errorf("a key is in %q", err)
		}
	}
}

// Readers look at a ring without a lock, so this is one for -race.
func TestARingIsReplacedWhileItIsRead(t *testing.T) {
	ring, err := memberlist.NewKeyring(nil, keyOf('a'))
	must(t, err)
	stop, stopped := make(chan struct{}), make(chan int)
	go func() {
		sum := 0
		for {
			select {
			case <-stop:
				stopped <- sum
				return
			default:
				for _, key := range ring.GetKeys() {
					sum += len(key)
				}
			}
		}
	}()
	for _, names := range []string{"ab", "ba", "b", "bcd", "dcb", "x", "xyzabc", "zb", "abcdefghijklmnop", "p"} {
		var keys [][]byte
		for _, name := range []byte(names) {
			keys = append(keys, keyOf(name))
		}
		must(t, install(ring, keys))
		var got []byte
		for _, key := range ring.GetKeys() {
			got = append(got, key[0])
		}
		if string(got) != names {
			t.Errorf("ring %s, want %s", got, names)
		}
	}
	close(stop)
	<-stopped
}

func TestTheSecretDependsOnWhatItIsSaidToDependOn(t *testing.T) {
	a, b := keyOf('a'), keyOf('b')
	file := []byte("a secret of sixteen bytes or more")
	base := makeSecret(nil, [][]byte{a}, "c")
	if base != makeSecret(nil, [][]byte{a, b}, "c") {
		t.Error("a key that was added changes it")
	}
	if makeSecret(file, [][]byte{a}, "c") != makeSecret(file, [][]byte{b, a}, "c") {
		t.Error("keys change that of a file")
	}
	seen := map[Secret]string{}
	for name, s := range map[string]Secret{
		"key a": base, "key b": makeSecret(nil, [][]byte{b, a}, "c"), "another cluster": makeSecret(nil, [][]byte{a}, "d"),
		"a file": makeSecret(file, [][]byte{a}, "c"), "no key": makeSecret(nil, nil, "c"), "the key as a file": makeSecret(a, nil, "c"),
	} {
		if other, ok := seen[s]; ok {
			t.Errorf("%s has the secret of %s", name, other)
		}
		seen[s] = name
		if check := s.check(); bytes.Contains(s[:], check[:]) {
			t.Errorf("%s: the check is a part of it", name)
		}
	}
}
