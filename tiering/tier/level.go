package tier

// Level is a degree of durability. For an object it is the highest level that the object
// has reached. For a commit it is the level that the object must reach before its
// publication is acknowledged. The local protocol uses the same numbers.
type Level uint8

// The levels and what each survives.
const (
	LevelDefault Level = 0 // in a request: the level that the store is configured with
	LevelMemory  Level = 1 // nothing
	LevelLogged  Level = 2 // a killed process: the kernel has the data and the catalog's row
	LevelSynced  Level = 3 // power loss: the disk has the data and the row
)

// String returns the level's name in flags and output.
func (l Level) String() string {
	if l > LevelSynced {
		return "unknown"
	}
	return [...]string{"default", "memory", "logged", "synced"}[l]
}
