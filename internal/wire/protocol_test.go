package wire

import (
	"strings"
	"testing"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// TestTwoRevisionsOfSkewWork: both sides come to the same answer, and name the
// same agent to upgrade.
func TestTwoRevisionsOfSkewWork(t *testing.T) {
	for _, c := range []struct {
		own, peer uint32
		upgrade   string
	}{
		{peering.Protocol, peering.Protocol, ""},
		{peering.Protocol, 0, ""}, // sends no revision
		{peering.Protocol, peering.Protocol + 1, ""},
		{peering.Protocol, peering.Protocol + 2, ""},
		{1, 4, "speaks revision 1"},
		{5, 3, ""},
		{5, 2, "speaks revision 2"},
		{3, 0, "speaks revision 0"},
		{1, 1<<32 - 1, "speaks revision 1"},
	} {
		for _, pair := range [][2]uint32{{c.own, c.peer}, {c.peer, c.own}} {
			err := peering.CheckProtocol(pair[0], pair[1])
			switch {
			case c.upgrade == "" && err != nil:
				t.Errorf("%d refuses %d: %v", pair[0], pair[1], err)
			case c.upgrade != "" && (ReasonOf(err) != peering.ReasonProtocolUnsupported || !strings.HasSuffix(err.Error(), "upgrade the agent that "+c.upgrade)):
				t.Errorf("%d of %d: %v", pair[0], pair[1], err)
			}
		}
	}
}

// TestUnknownValuesAreRefusedWithAReason: values of a later revision where
// one has to know what they mean.
func TestUnknownValuesAreRefusedWithAReason(t *testing.T) {
	exposed := AdvertisementTo(fullAdvertisement(t))
	exposed.Exposure = "Everything\n"
	secured := AdvertisementTo(fullAdvertisement(t))
	secured.PodSecurity = "paranoid"
	for name, read := range map[string]func() error{
		"exposure": func() error { _, err := AdvertisementFrom(exposed, false); return Response(err) },
		"level":    func() error { _, err := AdvertisementFrom(secured, false); return Response(err) },
		"kind": func() error {
			_, err := ObjectRefFrom(&ententev1.ObjectRef{Kind: 99, Namespace: "a", Name: "b", Uid: "c"})
			return err
		},
	} {
		err := read()
		if ReasonOf(err) != peering.ReasonProtocolUnsupported || !strings.Contains(err.Error(), "upgrade") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A field that an older one does not send is not an error.
	silent := AdvertisementTo(fullAdvertisement(t))
	silent.HourlyPrice = nil
	if _, err := AdvertisementFrom(silent, false); err != nil {
		t.Error(err)
	}
}
