//go:build !race

package tunnel

import "time"

const pingEvery = time.Millisecond
