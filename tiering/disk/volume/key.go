package volume

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/zeebo/xxh3"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// keyName is the file with the secret that seals extents. Only the daemon's user may read it:
//
//	spliced key 1
//	from 1
//	secret 5be0…
//	sum 83d1f0a2c9b7e645
//
// The line "from" has a generation. Extents of lower generations are older than the key and
// have no seal. The line "sum" has the xxh3 of the lines above it.
const keyName = "KEY"

// keyLost is the part of error messages that explains the consequences of a lost or
// damaged key.
const keyLost = ", and nothing that is stored can be verified without it: put it back, or delete the directory, whose entries are all lost"

func keyText(from uint64, secret []byte) []byte {
	b := fmt.Appendf(nil, "spliced key 1\nfrom %d\nsecret %x\n", from, secret)
	return fmt.Appendf(b, "sum %016x\n", xxh3.Hash(b))
}

func parseKey(b []byte) (*extent.Key, error) {
	var from, sum uint64
	var text string
	_, err := fmt.Sscanf(string(b), "spliced key 1\nfrom %d\nsecret %s\nsum %x\n", &from, &text, &sum)
	var secret []byte
	if err == nil {
		secret, err = hex.DecodeString(text)
	}
	if err != nil || len(secret) != 32 || string(keyText(from, secret)) != string(b) {
		return nil, fmt.Errorf("%s is damaged%s: %w", keyName, keyLost, tier.ErrCorrupt)
	}
	return extent.NewKey([32]byte(secret), from), nil
}

// readKey reads the key of a directory that must have one. Without the key, stored
// entries cannot be distinguished from forged ones, so a missing key is tier.ErrCorrupt.
// ErrKey means that FORMAT knows the store's key, and that it is another one.
func (v *Volume) readKey() error {
	b, err := readFile(v.index, v.path(keyName), 4096)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s is lost%s: %w", keyName, keyLost, tier.ErrCorrupt)
	}
	if err != nil {
		return err
	}
	if v.Key, err = parseKey(b); err != nil {
		return err
	}
	if v.Bound() && v.Format.binding != v.Key.Binding(v.Format.ID) {
		return ErrKey
	}
	return nil
}

// makeKey creates the key, and then writes FORMAT with this version. The parameter from is
// the first generation whose extents the key seals. Earlier releases would treat seals as
// damage, but they refuse a directory of this version. After a crash before FORMAT is
// written, the next call creates another key; the first one has sealed nothing.
func (v *Volume) makeKey(from uint64) error {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	text := keyText(from, secret)
	if err := replaceFile(v.index, v.dir, keyName, text); err != nil {
		return err
	}
	key, err := parseKey(text)
	if err != nil {
		return err
	}
	v.Key, v.Format.Version = key, Version
	return v.WriteFormat(true)
}

// sealFromNow upgrades a directory of version 1: it creates the key that seals all
// extents written from now on.
func (v *Volume) sealFromNow() error {
	from, err := v.Catalog.NextGenerations(1)
	if err != nil {
		return fmt.Errorf("catalogue: %w", err)
	}
	if err := v.makeKey(from); err != nil {
		return err
	}
	v.log.Info().Str("tier", "disk").Str("dir", v.dir).Int("version", Version).Uint64("from", from).
		Msg("the directory is of this version now: releases before it do not open it; what they wrote has no seal and is served until it leaves")
	return nil
}
