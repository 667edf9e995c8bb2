	.text
	.file	"null"
	.ident	"clang version 19.1.7 (https://github.com/ziglang/zig-bootstrap de1b01a8c1dddf75a560123ac1c2ab182b4830da)"
	.section	".note.GNU-stack","",@progbits
	.addrsig
