package agent

import (
	"os"
	"strings"
	"testing"
)

// README.md and docs/api.md ask https://localhost:7444 through a forwarded port, with no
// name of the agent's: its certificate has to be for that, too.
func TestTheDocsReachTheAgentByALocalName(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"../../README.md", "../../docs/api.md"} {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(b); !strings.Contains(text, "https://localhost:7444") || strings.Contains(text, "--connect-to") {
			t.Errorf("%s does not ask https://localhost:7444 as it is", page)
		}
	}
	if !strings.Contains(strings.Join((&agent{cfg: Config{Namespace: "entente-system"}}).serviceNames(), " "), "localhost") {
		t.Errorf("the admin API's certificate is for %q only", (&agent{cfg: Config{Namespace: "entente-system"}}).serviceNames())
	}
}
