package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
)

func TestWhatATerminalWouldObeyIsEscaped(t *testing.T) {
	for text, want := range map[string]string{
		"model é 中 → ×":         "model é 中 → ×",
		"\x1b]0;title\a":        `\u001b]0;title\u0007`,
		"\x1b[2K\rok":           `\u001b[2K\u000dok`,
		"\u009b31m":             `\u009b31m`,
		"\x9b31m":               `\x9b31m`,
		"a\nb\tc":               `a\u000ab\u0009c`,
		"\u202egnp.exe":         `\u202egnp.exe`,
		"tag \U000E0041":        `tag \udb40\udc41`,
		"\x00\x7f":              `\u0000\u007f`,
		"\uFFFD is a character": "\uFFFD is a character",
	} {
		if got := Line(text); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
	if got := Text("a\nb\tc\x1b"); got != "a\nb\tc\\u001b" {
		t.Errorf("got %q", got)
	}
}

// A document that goes through the writer says the same.
func TestDocumentsStayWhatTheyAre(t *testing.T) {
	const name = "\x1b]0;\u009b \u202e \U000E0041 é\n"
	var b bytes.Buffer
	if err := json.NewEncoder(NewWriter(&b, nil)).Encode(map[string]string{"name": name}); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || back["name"] != name {
		t.Errorf("%s reads as %q, %v", &b, back["name"], err)
	}
	if n, err := fmt.Fprint(NewWriter(&b, nil), "\x1b"); n != 1 || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
}
