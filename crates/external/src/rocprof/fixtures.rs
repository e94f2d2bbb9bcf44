//! One small run in the formats of ROCm 6.2 and ROCm 7, written by hand.

/// `*_kernel_trace.csv` of ROCm 7.
pub(crate) const TRACE: &str = include_str!(sample!("rocprof-kernel-trace"));

/// `*_counter_collection.csv` of ROCm 7: two counters of three dispatches, one of which never counts.
pub(crate) const COUNTERS: &str = include_str!(sample!("rocprof-counters"));

/// The same in ROCm 6.2: agents are numbers and dispatches have no times.
pub(crate) const COUNTERS_6_2: &str = r#""Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","SGPR_Count","Counter_Name","Counter_Value"
1,1,1,1,19396,19396,1048576,16,"void add<float>(float*, int)",64,0,0,8,16,"SQ_WAVES",16384
2,2,1,1,19396,19396,1048576,16,"void add<float>(float*, int)",64,0,0,8,16,"SQ_WAVES",16384
"#;

pub(crate) const CALLS: &str = r#""Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"HIP_RUNTIME_API_EXT","hipModuleLaunchKernel",15606,15606,1,3200098838400000,3200098838402500
"HIP_RUNTIME_API_EXT","hipStreamSynchronize",15606,15606,2,3200098838410000,3200098838447500
"#;

pub(crate) const AGENTS: &str = r#""Node_Id","Logical_Node_Id","Agent_Type","Cpu_Cores_Count","Simd_Count","Wave_Front_Size","Cu_Count","Gfx_Target_Version","Name","Vendor_Name","Product_Name","Model_Name"
0,0,"CPU",16,0,0,16,0,"AMD Ryzen 9 7950X 16-Core Processor","CPU","AMD Ryzen 9 7950X 16-Core Processor",""
1,1,"GPU",0,168,32,84,110000,"gfx1100","AMD","AMD Radeon RX 7900 XT","navi31"
"#;

/// `*_results.json` of ROCm 7 for the same run: a counter has a record per shader engine.
pub(crate) const JSON: &str = include_str!(sample!("rocprof-json"));
