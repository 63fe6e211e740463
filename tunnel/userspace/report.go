package userspace

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/entente-dev/entente/tunnel/plan"
)

// Report is what the tunnel process reports.
type Report struct {
	// Refused is how many packets of each peer its cipher refused; peers without any may be left out.
	Refused map[plan.PublicKey]uint64
	// Offloads are those in use.
	Offloads Offloads
}

// parseReport reads a report. It skips what it does not know: the process may be newer.
func parseReport(text string) (Report, error) {
	out := Report{Refused: map[plan.PublicKey]uint64{}, Offloads: Offloads{}}
	var key plan.PublicKey
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if offload, ok := strings.CutPrefix(name, "offload_"); ok {
			if slices.Contains(AllOffloads(), Offload(offload)) {
				out.Offloads[Offload(offload)] = value == "true"
			}
			continue
		}
		switch name {
		case "public_key":
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != len(key) {
				return out, fmt.Errorf("parse the report of the tunnel process: malformed key %q", value)
			}
			key = plan.PublicKey(b)
		case "refused_packets":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return out, fmt.Errorf("parse the report of the tunnel process: %w", err)
			}
			out.Refused[key] = n
		case "errno":
			if value != "0" {
				return out, fmt.Errorf("the tunnel process reports error %s", value)
			}
			return out, nil
		}
	}
	return out, errors.New("the tunnel process does not report: it is of another version")
}
