package pake

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gtank/ristretto255"
)

// The vectors are those of draft-irtf-cfrg-cpace-21, appendices A and B.3.

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func same(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if !bytes.Equal(got, unhex(t, want)) {
		t.Errorf("%s is\n%x, the draft says\n%s", what, got, want)
	}
}

func scalar(t *testing.T, s string) *ristretto255.Scalar {
	t.Helper()
	y, err := ristretto255.NewScalar().SetCanonicalBytes(unhex(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return y
}

func TestStringsAreThoseOfTheDraft(t *testing.T) {
	count := func(n int) []byte {
		var b []byte
		for i := range n {
			b = append(b, byte(i))
		}
		return b
	}
	same(t, `prepend_len(b"")`, prependLen(nil), "00")
	same(t, `prepend_len(b"1234")`, prependLen([]byte("1234")), "0431323334")
	same(t, "prepend_len of 127 bytes", prependLen(count(127)), "7f"+hex.EncodeToString(count(127)))
	same(t, "prepend_len of 128 bytes", prependLen(count(128)), "8001"+hex.EncodeToString(count(128)))
	same(t, "lv_cat", lvCat([]byte("1234"), []byte("5"), nil, []byte("678")), "043132333401350003363738")
	same(t, "transcript_ir", transcriptIR([]byte("123"), []byte("PartyA"), []byte("234"), []byte("PartyB")), "03313233065061727479410332333406506172747942")
	same(t, "transcript_ir", transcriptIR([]byte("3456"), []byte("PartyA"), []byte("2345"), []byte("PartyB")), "043334353606506172747941043233343506506172747942")
}

func TestRunMatchesTheVectorsOfTheDraft(t *testing.T) {
	const (
		sidHex = "7e4b4791d6a8ef019b936c79fb7f2c57"
		yaHex  = "da3d23700a9e5699258aef94dc060dfda5ebb61f02a5ea77fad53f4ff0976d08"
		ybHex  = "d2316b454718c35362d83d69df6320f38578ed5984651435e2949762d900b80d"
		share1 = "d6bac480f2c386c394efc7c47adb9925dcd2630b64f240c50f8d0eec482b9157"
		share2 = "3ea7e0b19560d7c0b0f5734f63b955286dfa8232b5ebe63324e2d9e7433f7258"
		kHex   = "80b69a8a76457ab6a4d7f887a4bf6b55a2f80ac19c333f917a05fc9887c8b40f"
	)
	prs, sid := []byte("Password"), unhex(t, sidHex)
	ci := Run{Initiator: "A_initiator", Responder: "B_responder"}.ci()
	same(t, "CI", ci, "0b415f696e69746961746f720b425f726573706f6e646572")
	same(t, "generator_string", generatorString(prs, ci, sid), "11435061636552697374726574746f3235350850617373776f7264"+
		"64"+strings.Repeat("00", 100)+"180b415f696e69746961746f720b425f726573706f6e64657210"+sidHex)
	g := calculateGenerator(prs, ci, sid)
	same(t, "generator", g.Bytes(), "222b6b195fe84b1652badb6f6a3ae3d24341e7306967f0b8115b40d5698c7e56")
	ya, yb := scalar(t, yaHex), scalar(t, ybHex)
	same(t, "Ya", scalarMult(ya, g), share1)
	same(t, "Yb", scalarMult(yb, g), share2)
	for name, side := range map[string]struct {
		y     *ristretto255.Scalar
		share string
	}{"K of A": {ya, share2}, "K of B": {yb, share1}} {
		k, err := scalarMultVfy(side.y, unhex(t, side.share))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		same(t, name, k, kHex)
	}
	transcript := transcriptIR(unhex(t, share1), []byte("ADa"), unhex(t, share2), []byte("ADb"))
	same(t, "transcript", transcript, "20"+share1+"03414461"+"20"+share2+"03414462")
	same(t, "ISK", isk(sid, unhex(t, kHex), transcript), `
		b69effbf61b51d56401c0f65601abe428de8206feaaf0e32198896dcae7b35cd
		2b38950a39dfd5d4a79164614c2984f7daa460b588c1e80c3fa2068af7900447`)
}

func TestSharesAreAcceptedAsInTheDraft(t *testing.T) {
	s := scalar(t, "7cd0e075fa7955ba52c02759a6c90dbbfc10e6d40aea8d283e407d88cf538a05")
	k, err := scalarMultVfy(s, unhex(t, "2c3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c"))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "scalar_mult_vfy", k, "7c13645fe790a468f62c39beb7388e541d8405d1ade69d1778c5fe3e7f6b600e")
	for name, share := range badShares(t) {
		if k, err := scalarMultVfy(s, share); !errors.Is(err, ErrShare) || k != nil {
			t.Errorf("%s: %x, %v", name, k, err)
		}
	}
	// A zero scalar is refused with any share.
	if k, err := scalarMultVfy(ristretto255.NewScalar(), unhex(t, "2c3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c")); !errors.Is(err, ErrShare) {
		t.Errorf("a key that is the identity: %x, %v", k, err)
	}
}

// badShares are what no honest side sends.
func badShares(t testing.TB) map[string][]byte {
	t.Helper()
	base := ristretto255.NewGeneratorElement().Bytes()
	high := slices.Clone(base)
	high[31] |= 0x80
	return map[string][]byte{
		"Y_i1 of the draft, not an element":      unhex(t, "2b3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c"),
		"Y_i2 of the draft, the identity":        make([]byte, 32),
		"the identity, not canonical":            unhex(t, "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
		"a negative field element":               unhex(t, "0100000000000000000000000000000000000000000000000000000000000000"),
		"minus one, of low order on the curve":   unhex(t, "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
		"a point of order eight of edwards25519": unhex(t, "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
		"the high bit set":                       high,
		"all bits set":                           bytes.Repeat([]byte{0xff}, 32),
		"nothing":                                nil,
		"a byte less":                            base[:31],
		"a byte more":                            append(slices.Clone(base), 0),
	}
}

// FuzzDecodeShare checks that only the one encoding of an element other than the identity is
// accepted as a share.
func FuzzDecodeShare(f *testing.F) {
	f.Add(ristretto255.NewGeneratorElement().Bytes())
	for _, share := range badShares(f) {
		f.Add(share)
	}
	f.Fuzz(func(t *testing.T, share []byte) {
		x, err := decodeShare(share)
		if err != nil {
			return
		}
		if !bytes.Equal(x.Bytes(), share) {
			t.Errorf("%x and %x are the same share", share, x.Bytes())
		}
		if x.Equal(ristretto255.NewIdentityElement()) == 1 {
			t.Errorf("%x is the identity", share)
		}
		// Of an order other than the group's there is no element.
		if k, err := scalarMultVfy(sampleScalar(), share); err != nil || len(k) != ShareLen {
			t.Errorf("%x: %v", share, err)
		}
	})
}
