package exit

import (
	"strings"
	"testing"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/peering"
)

func TestErrorsAboutNamespacesSayWhatToDoNext(t *testing.T) {
	for _, reason := range []client.Reason{peering.ReasonNamespaceUnknown, peering.ReasonMappingFixed} {
		err := &CallError{Cluster: "local", Doing: "offload shop", Err: peering.Errorf(reason, "no")}
		if got := err.Error(); !strings.Contains(got, "\n  next: ") || !strings.Contains(got, "namespace NAME") {
			t.Errorf("%s prints %q, want what to do next", reason, got)
		}
	}
}
