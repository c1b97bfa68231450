// Package fill lets clients reserve room for objects and commit their bytes, packs complete
// segments, and publishes what is complete. The bytes of a commit are copied and hashed
// without the catalog's lock. Meanwhile the fill counts the copy, so that its memory is not
// freed under it.
package fill
