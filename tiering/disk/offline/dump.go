package offline

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/disk/catalog"
	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/disk/slab"
)

// DumpRow is a row of the catalogue for display.
type DumpRow struct {
	Kind        string     `json:"kind"`
	Key         string     `json:"key"`
	Generation  uint64     `json:"generation"`
	Tenant      string     `json:"tenant"`
	Model       string     `json:"model"`
	Fingerprint string     `json:"fingerprint"`
	Begin       int        `json:"begin"`
	End         int        `json:"end"`
	Tokens      int        `json:"tokens,omitempty"` // tokens of the whole segment
	Primer      string     `json:"primer,omitempty"` // id of the primer after which the segment was captured
	Parent      string     `json:"parent,omitempty"`
	Ranks       int        `json:"ranks"`
	RankBytes   int64      `json:"rank_bytes"`
	Bytes       int64      `json:"bytes"` // allocated space
	Coded       bool       `json:"coded,omitempty"`
	Created     time.Time  `json:"created"`
	Used        time.Time  `json:"used"`
	Runs        []slab.Run `json:"runs"`
}

func dumpRow(r *catalog.Row, tenant, model string) DumpRow {
	d := DumpRow{
		Kind: kindName(r.Kind), Key: hex.EncodeToString(r.Key[:]), Generation: r.Generation, Tenant: tenant, Model: model,
		Fingerprint: hex.EncodeToString(r.Fingerprint[:]), Begin: r.Begin, End: r.End, Tokens: r.Spec.Tokens,
		Ranks: r.Ranks, RankBytes: r.RankBytes, Bytes: slab.RunBytes(r.Runs), Coded: r.Coded,
		Created: time.Unix(0, r.Created).UTC(), Used: time.Unix(0, r.Used).UTC(), Runs: r.Runs,
	}
	if id := r.Spec.Primer; id != (profile.PrimerID{}) {
		d.Primer = hex.EncodeToString(id[:])
	}
	if r.Parent != (extent.Name{}) {
		d.Parent = kindName(r.Parent.Kind) + " " + hex.EncodeToString(r.Parent.Key[:])
	}
	return d
}

// Dump calls fn with every row of the catalogue, in ascending order of kind and key. Like
// Check, it locks the directory.
func Dump(ctx context.Context, dir string, fn func(DumpRow) error) error {
	return DumpPlace(ctx, Place{Dir: dir}, fn)
}

// DumpPlace is Dump for any Place.
func DumpPlace(ctx context.Context, p Place, fn func(DumpRow) error) (err error) {
	o, err := open(p, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	if err := o.take(); err != nil {
		return err
	}
	rows, err := o.rows()
	if err != nil {
		return err
	}
	tenants := o.Catalog.Tenants()
	for i := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		model := ""
		if p := o.profiles[rows[i].Fingerprint]; p != nil {
			model = p.Identity().Model
		}
		if err := fn(dumpRow(&rows[i], tenants[rows[i].Tenant], model)); err != nil {
			return err
		}
	}
	return nil
}
