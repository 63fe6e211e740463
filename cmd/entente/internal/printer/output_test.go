package printer

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func TestOutputHasTheRequestedForm(t *testing.T) {
	t.Parallel()
	info := &ententev1.Contract{ContractId: "7f3c9a", Revision: 12345678901234567, Phase: "<Active>"}
	for name, tc := range map[string]struct {
		flags      Flags
		structured bool
		want       string
	}{
		"one text is for scripts":             {Flags{get: "contractId"}, true, "7f3c9a\n"},
		"as JSON it has quotes":               {Flags{Form: formJSON, get: "contractId"}, true, "\"7f3c9a\"\n"},
		"as YAML it is what YAML reads":       {Flags{Form: formYAML, get: "revision"}, true, "\"12345678901234567\"\n"},
		"large numbers keep their digits":     {Flags{get: "revision"}, true, "12345678901234567\n"},
		"nothing is escaped for a browser":    {Flags{Form: formJSON, get: "phase"}, true, "\"<Active>\"\n"},
		"false values are printed, too":       {Flags{get: "cordoned"}, true, "false\n"},
		"a list of the values at a path":      {Flags{get: "['contractId','phase']"}, true, "[\n  \"7f3c9a\",\n  \"<Active>\"\n]\n"},
		"a table is for people, not programs": {Flags{Form: FormTable, get: ""}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.flags.Structured(); got != tc.structured {
				t.Fatalf("it is for programs: %t", got)
			}
			var b strings.Builder
			if err := tc.flags.Write(&b, info); err != nil || tc.want != "" && b.String() != tc.want {
				t.Errorf("got %q, %v, want %q", b.String(), err, tc.want)
			}
		})
	}
	if err := (&Flags{get: "nothing"}).Write(&strings.Builder{}, info); err == nil || !strings.Contains(err.Error(), "--get nothing") {
		t.Errorf("a field that is not there: %v", err)
	}
}

// A stream is read line by line, or document by document; a single field is a line.
func TestStreamedMessagesAreLinesOrDocuments(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flags Flags
		want  string
	}{
		"JSON":    {Flags{Form: formJSON}, "{\"message\":\"\",\"peer\":\"peers/a\",\"reason\":\"\",\"subject\":\"\"}\n"},
		"YAML":    {Flags{Form: formYAML}, "---\nmessage: \"\"\npeer: peers/a\nreason: \"\"\nsubject: \"\"\n"},
		"a field": {Flags{get: "peer"}, "peers/a\n"},
	} {
		var b strings.Builder
		for range 2 {
			if err := tc.flags.WriteNext(&b, &ententev1.WatchEventsResponse{Peer: "peers/a"}); err != nil {
				t.Fatal(err)
			}
		}
		if b.String() != strings.Repeat(tc.want, 2) {
			t.Errorf("%s: got %q, want twice %q", name, b.String(), tc.want)
		}
	}
	var b strings.Builder
	if err := WriteList[proto.Message](&Flags{Form: formJSON}, &b, nil); err != nil || b.String() != "[]\n" {
		t.Errorf("an empty list is %q, %v", b.String(), err)
	}
}
