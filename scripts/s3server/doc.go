// Package s3server pins the version of the S3 server for tests of tiering/object: versitygw over
// a directory. It is a separate module, so that the main module does not depend on it. The tests
// build the server into bin/tools if it is missing.
package s3server
