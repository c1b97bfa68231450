package gpuipc

import (
	"errors"
	"strings"
	"testing"
)

func TestUUIDsReadAsTheyAreWritten(t *testing.T) {
	u := UUID{0x8a, 0x2f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0xff}
	const text = "GPU-8a2f0102-0304-0506-0708-090a0b0c0dff"
	if u.String() != text {
		t.Errorf("written as %s", u)
	}
	for _, s := range []string{text, strings.ToLower(text), strings.TrimPrefix(text, "GPU-"), strings.ToUpper(text), "MIG-" + text[4:]} {
		if got, err := ParseUUID(s); err != nil || got != u {
			t.Errorf("%q reads as %v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "GPU-", "0", text + "0", text[:len(text)-1], text + "-00", strings.Replace(text, "8", "g", 1),
		"MIG-" + text, "TPU-" + text[4:], "GPU-8a2f01-020304-0506-0708-090a0b0c0dff"} {
		if _, err := ParseUUID(s); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", s, err)
		}
	}
}
