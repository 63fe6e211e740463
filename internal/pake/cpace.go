package pake

import (
	"bytes"
	"crypto/sha512"
	"encoding/binary"

	"github.com/gtank/ristretto255"
)

// The functions of the draft, by their names there. Sections are those of
// draft-irtf-cfrg-cpace-21.

const (
	// dsi is G_Ristretto255.DSI (section 8.3).
	dsi = "CPaceRistretto255"
	// hashBlock is H.s_in_bytes of SHA-512 (section 6.2).
	hashBlock = sha512.BlockSize
)

// prependLen is prepend_len: a string after its length in LEB128 (sections 6.3 and A.1.1).
func prependLen(b []byte) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(b))), b...)
}

// lvCat is lv_cat (sections 6.3 and A.1.3).
func lvCat(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, prependLen(p)...)
	}
	return out
}

// transcriptIR is transcript_ir (sections 6.3 and A.3.4).
func transcriptIR(ya, ada, yb, adb []byte) []byte {
	return append(lvCat(ya, ada), lvCat(yb, adb)...)
}

// generatorString is generator_string for this suite (section 8.1).
func generatorString(prs, ci, sid []byte) []byte {
	pad := max(0, hashBlock-1-len(prependLen(prs))-len(prependLen([]byte(dsi))))
	return lvCat([]byte(dsi), prs, make([]byte, pad), ci, sid)
}

// calculateGenerator is G.calculate_generator (section 8.3).
func calculateGenerator(prs, ci, sid []byte) *ristretto255.Element {
	hash := sha512.Sum512(generatorString(prs, ci, sid))
	g, err := ristretto255.NewIdentityElement().SetUniformBytes(hash[:])
	if err != nil {
		panic(err) // it has 64 bytes
	}
	return g
}

// scalarMult is G.scalar_mult (section 8.3).
func scalarMult(y *ristretto255.Scalar, g *ristretto255.Element) []byte {
	return ristretto255.NewIdentityElement().ScalarMult(y, g).Bytes()
}

// scalarMultVfy is G.scalar_mult_vfy (section 8.3), and the check that follows it (section
// 7.2): the error is ErrShare where the draft says G.I. As the order of the group is a
// prime, only the identity, and what is not an element, lead there.
func scalarMultVfy(y *ristretto255.Scalar, share []byte) ([]byte, error) {
	x, err := decodeShare(share)
	if err != nil {
		return nil, err
	}
	k := scalarMult(y, x)
	if bytes.Equal(k, make([]byte, ShareLen)) {
		return nil, ErrShare
	}
	return k, nil
}

// decodeShare reads a share: the one encoding of an element that is not the identity. The
// error is ErrShare.
func decodeShare(share []byte) (*ristretto255.Element, error) {
	x, err := ristretto255.NewIdentityElement().SetCanonicalBytes(share)
	if err != nil || x.Equal(ristretto255.NewIdentityElement()) == 1 {
		return nil, ErrShare
	}
	return x, nil
}

// isk is the intermediate session key (section 7.2).
func isk(sid, k, transcript []byte) []byte {
	out := sha512.Sum512(append(lvCat([]byte(dsi+"_ISK"), sid, k), transcript...))
	return out[:]
}
