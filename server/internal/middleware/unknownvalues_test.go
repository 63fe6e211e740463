package middleware

import (
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// TestMessagesOfALaterRevisionAreValidatedByTheRulesOfThisOne: what a later revision added breaks
// no rule, and the other fields are still validated.
func TestMessagesOfALaterRevisionAreValidatedByTheRulesOfThisOne(t *testing.T) {
	apply := func(kind ententev1.Kind, name string) *ententev1.SyncRequest {
		return &ententev1.SyncRequest{Message: &ententev1.SyncRequest_Apply_{Apply: &ententev1.SyncRequest_Apply{
			Ref: &ententev1.ObjectRef{Kind: kind, Namespace: "a", Name: name, Uid: "c"}, Hash: make([]byte, 32), Object: []byte("{}"),
		}}}
	}
	message := &ententev1.SyncRequest{}
	message.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	validator, err := protovalidate.New()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		m  proto.Message
		ok bool
	}{
		"a kind of this revision":                 {apply(ententev1.Kind_KIND_POD, "b"), true},
		"a kind of a later one":                   {apply(99, "b"), true},
		"a kind of a later one and no name":       {apply(99, ""), false},
		"a kind that is not set":                  {apply(0, "b"), false},
		"a kind of message of a later revision":   {message, true},
		"an empty message":                        {&ententev1.SyncRequest{}, false},
		"a request of this revision with nothing": {&ententev1.RequestPeeringRequest{}, false},
	} {
		err := validator.Validate(c.m, protovalidate.WithFilter(protovalidate.FilterFunc(IgnoreUnknownValues)))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
