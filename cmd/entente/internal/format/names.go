package format

import (
	"strings"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// Short is a name without its collections: peers/NAME is NAME, and
// peers/NAME/requests/ID is NAME/ID.
func Short(name string) string {
	parts := strings.Split(name, "/")
	var own []string
	for i := 1; i < len(parts); i += 2 {
		own = append(own, parts[i])
	}
	if len(own) == 0 {
		return name
	}
	return strings.Join(own, "/")
}

// ShortName is a peer's name without peers/.
func ShortName(p *ententev1.Peer) string { return Short(p.GetName()) }

// Shorts lists the short forms of names.
func Shorts(names []string) string {
	var out []string
	for _, n := range names {
		out = append(out, Short(n))
	}
	return strings.Join(out, ", ")
}
