package fakecuda

import (
	"path/filepath"
	"strconv"
	"strings"
)

// Setup configures the fake driver of another process, from the start of that process. The
// zero value is one device of 1 GiB and no faults.
type Setup struct {
	Dir     string   // see DIR in fakecuda.h; "" = none
	Bytes   int64    // memory of each device; 0 = 1 GiB
	Devices []string // UUIDs, 32 hexadecimal digits each; nil = one device
	Version int      // of the driver, in the form of driver.API.DriverVersion; 0 = 12040
	PID     int      // the process id shown to other processes; 0 = the real one
	Delay   int      // microseconds before each operation of a stream
	Faults  []Fault
}

// Env returns environment variables for a process that loads the library at path. The
// process may load it by this path or by its bare name libcuda.so.1.
func (s Setup) Env(path string) []string {
	env := []string{"LD_LIBRARY_PATH=" + filepath.Dir(path)}
	add := func(name, value string) { env = append(env, "FAKECUDA_"+name+"="+value) }
	number := func(name string, n int64) {
		if n != 0 {
			add(name, strconv.FormatInt(n, 10))
		}
	}
	if s.Dir != "" {
		add("DIR", s.Dir)
	}
	number("MEM", s.Bytes)
	number("VERSION", int64(s.Version))
	number("PID", int64(s.PID))
	number("DELAY", int64(s.Delay))
	if s.Devices != nil {
		add("DEVICES", strings.Join(s.Devices, ","))
	}
	specs := map[Kind][]string{}
	for _, f := range s.Faults {
		specs[f.Kind] = append(specs[f.Kind], f.spec())
	}
	for _, kind := range []Kind{Fail, Slow, Die, Hang, Lost} {
		if len(specs[kind]) > 0 {
			add(string(kind), strings.Join(specs[kind], ","))
		}
	}
	return env
}
