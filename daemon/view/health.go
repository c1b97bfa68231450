package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/tiering/disk"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// diskTrouble describes the most severe problem of the disk tier, and then its dormant entries; "" =
// none.
func diskTrouble(h disk.Health) string {
	var list []string
	switch {
	case h.State != disk.StateOK:
		text := fmt.Sprintf("%v since %s: %s", h.State, h.Since.Format(time.RFC3339), diskMeans[h.State])
		if h.Cause != "" {
			text += ": " + h.Cause
		}
		list = append(list, text)
	case h.ReadStalled > 0:
		list = append(list, fmt.Sprintf("a read has hung for %v: until it returns, objects only on disk are misses", h.ReadStalled.Round(time.Second)))
	case h.WriteStalled > 0:
		list = append(list, fmt.Sprintf("a write has hung for %v: until it returns, no new objects are accepted", h.WriteStalled.Round(time.Second)))
	case !h.Reads:
		list = append(list, "reads failed repeatedly and are suspended: objects only on disk are misses")
	}
	if h.Dormant > 0 {
		list = append(list, fmt.Sprintf("%d entries are kept but not served until the file of their profile can be read or an engine registers the profile: %s",
			h.Dormant, h.DormantCause))
	}
	return strings.Join(list, "; ")
}

// diskMeans describes the consequences of each state of the disk tier.
var diskMeans = map[disk.State]string{
	disk.StateFull:       "no file can be created, new entries replace old ones",
	disk.StatePaused:     "nothing is written, existing entries can be read",
	disk.StateFailed:     "nothing is written, existing entries can be read",
	disk.StateOpening:    "not open yet, serving from memory",
	disk.StateMissing:    "the directory is missing, or is not the previous one, and no new one is created; serving from memory",
	disk.StateRefused:    "the system refuses to open it; serving from memory",
	disk.StateLocked:     "serving from memory",
	disk.StateVersion:    "serving from memory",
	disk.StateUnreadable: "the directory is damaged or has another's KEY, serving from memory until that is repaired",
	disk.StateForeign:    "the directory, or something in it, does not belong to the daemon; serving from memory",
	disk.StateClosed:     "closed",
}

// gpus describes the configured devices for operators.
func (v *checks) gpus() (list []api.GPU) {
	counters, pools := v.o.Store.DeviceCounters(), v.o.Store.Pools()
	for _, g := range v.o.GPUs {
		state, _ := g.State()
		out := api.GPU{
			UUID: g.Name, State: state.String(), Trouble: g.Trouble(), Mode: g.Info.Mode, MPS: g.Info.MPS.String(),
			Stuck: g.StuckCalls(), Shared: g.ConnectionBytes(),
		}
		if n := g.Info.Driver; n > 0 {
			out.Driver = fmt.Sprintf("%d.%d", n/1000, n%1000/10)
		}
		if g.Device != nil {
			out.Name, out.Way = g.Device.Describe().Name, "handle"
			if g.Descriptors() {
				out.Way = "descriptor"
			}
			c := &counters[g.ID-1]
			out.Copies, out.Promoting = int64(c.Copies), int64(c.Promoting)
		}
		for i := range pools {
			if p := &pools[i]; g.ID != 0 && p.Device == g.ID {
				out.CapacityBytes += p.CapacityBytes
				out.UsedBytes += p.UsedBytes
			}
		}
		list = append(list, out)
	}
	return list
}

// gpuName returns the name of a device of the store, as shown to operators; "" for id 0.
func (v *base) gpuName(id tier.DeviceID) string {
	for _, g := range v.o.GPUs {
		if id != 0 && g.ID == id {
			return g.Name
		}
	}
	return ""
}

// gpuTrouble describes the problems of the GPUs; "" = none.
func (v *checks) gpuTrouble() string {
	var list []string
	for _, g := range v.o.GPUs {
		if trouble := g.Trouble(); trouble != "" {
			list = append(list, trouble)
		}
	}
	text := strings.Join(list, "; ")
	if text != "" && !v.o.GPUs.Serving() {
		text = "no GPU memory, serving from memory and disk: " + text
	}
	return text
}
