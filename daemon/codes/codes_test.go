package codes

import (
	"errors"
	"fmt"
	"testing"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/tiering/tier"
)

func TestTextHasNoKindAtItsEnd(t *testing.T) {
	for want, err := range map[string]error{
		"lease 5":                 fmt.Errorf("lease 5: %w", tier.ErrGone),
		"":                        tier.ErrGone,
		"unavailable: dial: none": fmt.Errorf("%w: dial: none", tier.ErrUnavailable),
		"other":                   errors.New("other"),
		"profile 3":               Refuse(wire.Gone, "profile %d", 3),
		"it is lost":              Refuse(wire.Unavailable, "%v", fmt.Errorf("it is lost: %w", gpuipc.ErrUnavailable)),
		"here: gone":              errors.Join(Refuse(wire.Busy, "here: gone")),
	} {
		code, _ := Of(err)
		if got := Text(code, err); got != want {
			t.Errorf("%v gives %q, want %q", err, got, want)
		}
	}
}
