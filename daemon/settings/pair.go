package settings

import (
	"crypto/tls"
	"encoding/pem"
	"strings"
)

// PEMFile is the content of a file that a setting names.
type PEMFile struct {
	Setting, Path string
	Text          []byte
}

// has reports whether the file has a block whose type ends with the given words.
func (f *PEMFile) has(words string) bool {
	for block, rest := pem.Decode(f.Text); block != nil; block, rest = pem.Decode(rest) {
		if strings.HasSuffix(block.Type, words) {
			return true
		}
	}
	return false
}

// Pair parses a certificate and its key; nil = it has added an error of the setting whose file is bad.
func (v *Faults) Pair(cert, key PEMFile) *tls.Certificate {
	pair, err := tls.X509KeyPair(cert.Text, key.Text)
	switch {
	case err == nil:
		return &pair
	case !cert.has("CERTIFICATE"):
		v.Add(cert.Setting, "%s has no certificate in PEM", cert.Path)
	case !key.has("PRIVATE KEY"):
		v.Add(key.Setting, "%s has no private key in PEM", key.Path)
	case strings.Contains(err.Error(), "does not match"):
		v.Add(key.Setting, "%s is not the key of the certificate in %s", key.Path, cert.Path)
	default:
		v.Add(cert.Setting, "%s with %s: %s", cert.Path, key.Path, strings.TrimPrefix(err.Error(), "tls: "))
	}
	return nil
}
