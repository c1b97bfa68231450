package tier

// Level is how safe an object is, or has to be before its commit is answered.
// The numbers are those of the local protocol.
type Level uint8

// The levels, each with what it survives.
const (
	LevelDefault Level = 0 // of a request: what the store's configuration says
	LevelMemory  Level = 1 // nothing
	LevelLogged  Level = 2 // a killed process: the kernel has the data and the row that finds it
	LevelSynced  Level = 3 // power loss: the disk has both
)

// String names a level as flags and people know it.
func (l Level) String() string {
	if l > LevelSynced {
		return "unknown"
	}
	return [...]string{"default", "memory", "logged", "synced"}[l]
}
