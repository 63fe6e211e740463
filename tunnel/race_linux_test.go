//go:build race

package tunnel

import "time"

// pingEvery is longer under the race detector: four fabrics and their ciphers in one process do
// not keep up with 2,000 packets a second there on a slow machine, and what is lost in full
// buffers is not lost for a key.
const pingEvery = 10 * time.Millisecond
