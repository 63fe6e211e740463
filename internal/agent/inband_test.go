package agent

import (
	"bytes"
	"slices"
	"testing"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/datagrams"
	"github.com/entente-dev/entente/internal/relay"
)

// TestAgentAndFabricAcceptEachOtherWhileAKeyIsReplaced has the two read the Secret at different times: each proves
// itself by the key in use, and accepts the one before and after it. So does the agent for links of gateways.
func TestAgentAndFabricAcceptEachOtherWhileAKeyIsReplaced(t *testing.T) {
	t.Parallel()
	key := func(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }
	// The content of the Secret, in the order in which it is written.
	written := []map[string][]byte{
		{"p": key(1)},
		{"p": key(1), "p" + v1alpha1.FabricKeyNext: key(2)},
		{"p": key(2), "p" + v1alpha1.FabricKeyPrevious: key(1)},
		{"p": key(2)},
	}
	for i := 1; i < len(written); i++ {
		for _, pair := range [][2]int{{i, i - 1}, {i - 1, i}} {
			proves, errProves := relayKeysFrom(written[pair[0]], "p", relay.ToPeer)
			accepts, errAccepts := relayKeysFrom(written[pair[1]], "p", relay.ToPeer)
			if errProves != nil || errAccepts != nil || !slices.Contains(accepts, proves[0]) {
				t.Errorf("what has read no. %d is refused by what has read no. %d (%v, %v)", pair[0], pair[1], errProves, errAccepts)
			}
			gateway, err := datagrams.KeyFrom([32]byte(written[pair[0]]["p"]))
			if accepts := linkKeysFrom(written[pair[1]], "p"); err != nil || !slices.Contains(accepts, gateway) {
				t.Errorf("a link of a gateway that has read no. %d is refused by an agent that has read no. %d (%v)", pair[0], pair[1], err)
			}
		}
	}
	for name, stored := range map[string]map[string][]byte{"nothing": nil, "that of another peer": {"q": key(1)}, "a part of it": {"p": key(1)[:31], "p.next": key(2)}} {
		if keys, err := relayKeysFrom(stored, "p", relay.ToPeer); err == nil || len(keys) > 0 {
			t.Errorf("with %s there are %d keys", name, len(keys))
		}
		if keys := linkKeysFrom(stored, "p"); len(keys) > 0 {
			t.Errorf("with %s there are %d keys of links", name, len(keys))
		}
	}
}
