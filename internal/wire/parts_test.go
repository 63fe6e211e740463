package wire

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// repeatedField is a message that has nothing but n empty elements in a field.
func repeatedField(field protowire.Number, n int, element []byte) []byte {
	var out []byte
	for range n {
		out = protowire.AppendBytes(protowire.AppendTag(out, field, protowire.BytesType), element)
	}
	return out
}

func TestMessagesThatWouldGrowByBeingReadAreRefusedUnread(t *testing.T) {
	contracts := (&ententev1.PeerState{}).ProtoReflect().Descriptor().Fields().ByName("contracts").Number()
	labels := (&ententev1.PeeringRequest{}).ProtoReflect().Descriptor().Fields().ByName("node_selector").Number()
	deep := protowire.AppendTag(nil, 1, protowire.BytesType)
	for range 1000 {
		// A list in a list in a list.
		deep = repeatedField(6, 1, repeatedField(1, 1, deep))
	}
	for name, tc := range map[string]struct {
		message []byte
		as      proto.Message
		field   string
	}{
		"an empty one":                  {nil, &ententev1.SessionRequest{}, ""},
		"a few contracts":               {repeatedField(1, 1, repeatedField(contracts, 256, nil)), &ententev1.SessionRequest{}, ""},
		"a million contracts":           {repeatedField(1, 1, repeatedField(contracts, 1_000_000, nil)), &ententev1.SessionRequest{}, "state.contracts"},
		"states in turn":                {repeatedField(1, MaxParts+1, nil), &ententev1.SessionRequest{}, "state"},
		"labels without keys":           {repeatedField(1, 1, repeatedField(labels, MaxParts, nil)), &ententev1.RequestPeeringRequest{}, "request.node_selector"},
		"labels with keys":              {repeatedField(1, 1, repeatedField(labels, MaxParts/2, []byte{10, 1, 'a'})), &ententev1.RequestPeeringRequest{}, "request.node_selector"},
		"unknown fields":                {repeatedField(1000, MaxParts+1, nil), &ententev1.SessionRequest{}, "unknown field 1000"},
		"an object as large as may be":  {repeatedField(2, 1, repeatedField(3, 1, bytes.Repeat([]byte{'{'}, MaxObjectBytes))), &ententev1.SyncRequest{}, ""},
		"no message":                    {[]byte{255, 255, 255}, &ententev1.SessionRequest{}, ""},
		"the end of one":                {repeatedField(1, 1, repeatedField(contracts, 9, nil))[:9], &ententev1.SessionRequest{}, ""},
		"lists in lists in lists":       {deep, &structpb.Value{}, "list_value.values"},
		"groups in groups, never ended": {bytes.Repeat([]byte{11}, 1<<20), &ententev1.SessionRequest{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckParts(tc.message, tc.as)
			if (err == nil) != (tc.field == "") {
				t.Fatalf("got %v", err)
			}
			if err == nil {
				return
			}
			e := FromStatus(err)
			if e.Reason != peering.ReasonRequestInvalid || len(e.Violations) != 1 {
				t.Fatalf("got %v", e)
			}
			if got := e.Violations[0].Field; len(got) < len(tc.field) || got[:len(tc.field)] != tc.field {
				t.Errorf("it is %s's fault, want %s", got, tc.field)
			}
		})
	}
}

// An empty container takes a kilobyte, an empty element of JSON three bytes.
func TestListsOfMoreThanThereCanBeAreRefusedUnread(t *testing.T) {
	list := func(n int, element string) []byte {
		return []byte(`{"spec":{"containers":[` + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + `],"volumes":[` + element + `]}}`)
	}
	for name, tc := range map[string]struct {
		raw  []byte
		good bool
	}{
		"a hundred with their variables": {list(100, `{"env":[`+strings.TrimSuffix(strings.Repeat(`{"name":"A","value":"b"},`, 100), ",")+`]}`), true},
		"half a million that are empty":  {list(500_000, "{}"), false},
		"as many that are nothing":       {list(300_000, "null"), false},
		"as many lists":                  {list(300_000, "[]"), false},
		"one too many":                   {list(maxJSONElements, `"a"`), false},
		"one fewer":                      {list(maxJSONElements-1, `"a"`), true},
		"an object of many members":      {[]byte(`{"a":"` + strings.Repeat(`","a":"`, 100_000) + `"}`), true},
	} {
		if err := CheckQuantities(tc.raw); (err == nil) != tc.good {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// A message that is accepted is never larger in memory than the limit.
func FuzzParts(f *testing.F) {
	f.Add([]byte{10, 2, 58, 0})
	f.Add(repeatedField(1, 1, repeatedField(7, 20, nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m ententev1.SessionRequest
		if CheckParts(b, &m) != nil {
			return
		}
		if proto.Unmarshal(b, &m) == nil && len(m.GetState().GetContracts()) > MaxParts {
			t.Error("too many were let through")
		}
	})
}
