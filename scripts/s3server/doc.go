// Package s3server pins the S3 server that tests of tiering/object run: versitygw over a
// directory. It is a module of its own, so that the daemon's needs nothing of it; the
// tests build it into bin/tools when it is not there.
package s3server
