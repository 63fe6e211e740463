package exit

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNearNames(t *testing.T) {
	known := []string{"milan", "milan-62hsfgkf", "Milano", "rome", "rom", "office-berlin", "x"}
	for name, tc := range map[string]struct {
		name  string
		known []string
		want  []string
	}{
		"its name from discovery":         {"milan", []string{"rome", "milan-62hsfgkf"}, []string{"milan-62hsfgkf"}},
		"its earlier name from discovery": {"milan-62hsfgkf", []string{"rome", "milan"}, []string{"milan"}},
		"another part of the ID":          {"milan-62hsfgkg", []string{"milan-62hsfgkf"}, []string{"milan-62hsfgkf"}},
		"two letters changed places":      {"rmoe", known, []string{"rome"}},
		"a letter too many":               {"roome", known, []string{"rome"}},
		"capitals":                        {"ROME", known, []string{"rome", "rom"}},
		"those with the name first":       {"milan", known[1:], []string{"milan-62hsfgkf", "Milano"}},
		"the beginning of a word is not":  {"off", known, nil},
		"short names have to match":       {"y", known, nil},
		"another name":                    {"paris", known, nil},
		"a token":                         {"ent1." + strings.Repeat("x", 400), known, nil},
		"nothing":                         {"", known, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, NearNames(tc.name, tc.known)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
