package catalog

import (
	"fmt"
	"maps"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/spliced-kv/spliced/tiering/disk/extent"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// tenants assigns permanent numbers to tenant names.
type tenants struct {
	sync.Mutex
	numbers map[string]uint32
	last    uint32
}

func (c *Catalog) loadTenants() error {
	numbers := map[string]uint32{}
	taken := map[uint32]string{}
	err := c.names(spaceTenant, func(name string, value []byte) error {
		n, err := parseTenantRow(value)
		if err != nil {
			return err
		}
		if other, ok := taken[n]; ok || n == 0 {
			return fmt.Errorf("tenant number %d is that of %q: %w", n, other, tier.ErrCorrupt)
		}
		numbers[name], taken[n] = n, name
		return nil
	})
	if err != nil {
		return err
	}
	c.tenants.numbers = numbers
	for n := range taken {
		c.tenants.last = max(c.tenants.last, n)
	}
	return nil
}

// TenantNumber returns the number of a tenant, from 1. A new name gets the next number.
// Its row is in the log before the row of any later commit that uses the number.
func (c *Catalog) TenantNumber(name string) (uint32, error) {
	if len(name) > extent.MaxNameBytes {
		return 0, fmt.Errorf("tenant name of %d bytes: %w", len(name), tier.ErrInvalid)
	}
	t := &c.tenants
	t.Lock() // held across the commit of a new name, which is rare
	defer t.Unlock()
	if n, ok := t.numbers[name]; ok {
		return n, nil
	}
	if t.last == math.MaxUint32 {
		return 0, fmt.Errorf("tenant %q: no number left: %w", name, tier.ErrFull)
	}
	n := t.last + 1
	err := c.write(false, func(b *pebble.Batch) error {
		return b.Set(textKey(spaceTenant, name), tenantRow(n), nil)
	})
	// After an error the number may be used on the disk, so it is not assigned again.
	t.last = n
	if err != nil {
		return 0, fmt.Errorf("tenant %q: %w", name, err)
	}
	t.numbers[name] = n
	return n, nil
}

// Tenants returns all assigned numbers with their names.
func (c *Catalog) Tenants() map[uint32]string {
	c.tenants.Lock()
	defer c.tenants.Unlock()
	out := make(map[uint32]string, len(c.tenants.numbers))
	for name, n := range c.tenants.numbers {
		out[n] = name
	}
	return out
}

// generationsAhead is the number of generations that one synced row reserves. Those not
// used when the process ends are lost, which does not matter among 2^64.
const generationsAhead = 1 << 16

// generations assigns numbers that no two extents share, even after a crash.
type generations struct {
	sync.Mutex
	next    uint64
	ceiling uint64
}

func (c *Catalog) loadGeneration() error {
	row, ok, err := c.get([]byte{spaceGeneration})
	if err != nil {
		return err
	}
	c.gens.next = 1
	if ok {
		if c.gens.next, err = parseUint64Row(row, generationVersion, "generation"); err != nil {
			return err
		}
	}
	c.gens.ceiling = c.gens.next
	return nil
}

// NextGenerations assigns n consecutive new generations and returns the first, which is
// at least 1. About one call in 65,536 waits for the disk.
func (c *Catalog) NextGenerations(n int) (first uint64, err error) {
	g := &c.gens
	g.Lock() // held across the sync, which other callers would need too
	defer g.Unlock()
	if n < 1 || uint64(n) > math.MaxUint64-generationsAhead-g.next {
		return 0, fmt.Errorf("%d generations after %d: %w", n, g.next, tier.ErrInvalid)
	}
	end := g.next + uint64(n)
	if end > g.ceiling {
		ceiling := end + generationsAhead
		err := c.write(true, func(b *pebble.Batch) error {
			return b.Set([]byte{spaceGeneration}, uint64Row(generationVersion, ceiling), nil)
		})
		if err != nil {
			return 0, fmt.Errorf("generations up to %d: %w", ceiling, err)
		}
		g.ceiling = ceiling
	}
	first, g.next = g.next, end
	return first, nil
}

func (c *Catalog) loadCounters() error {
	c.counters = map[string]uint64{}
	return c.names(spaceCounter, func(name string, value []byte) error {
		v, err := parseUint64Row(value, counterVersion, "counter")
		c.counters[name] = v
		return err
	})
}

// Counters returns the values of the counters at opening.
func (c *Catalog) Counters() map[string]uint64 { return maps.Clone(c.counters) }

// SaveCounters saves counters, as cheaply and as safely as SaveUses.
func (c *Catalog) SaveCounters(counters map[string]uint64) error {
	return c.apply(pebble.NoSync, func(b *pebble.Batch) error {
		for name, v := range counters {
			if err := b.Set(textKey(spaceCounter, name), uint64Row(counterVersion, v), nil); err != nil {
				return err
			}
		}
		return nil
	})
}
