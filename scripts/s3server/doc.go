// Package s3server pins the S3 server that tests of tiering/object run: versitygw over a
// directory. It is a separate module, so that the main module does not depend on it; the
// tests build it into bin/tools if it is missing.
package s3server
